"""How the bundled model was made: it needs a GPU and hours, and is no part of the installed package."""
