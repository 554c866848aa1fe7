"""Between strings and tokens: tokenizer, chat template, detokeniser, stop strings, reasoning and tool calls."""
