"""Lines of text, scanned in compiled loops."""
