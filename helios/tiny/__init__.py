"""The bundled model: its corpus, tokenizer, training and judge, and the two folders that came of them."""
