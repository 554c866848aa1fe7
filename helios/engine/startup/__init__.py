"""From a configuration to a warm engine: loading, compiling, capturing, and what is kept between starts."""
