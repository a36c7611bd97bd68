"""oocpr inside other people's programs."""
