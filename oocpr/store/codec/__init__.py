"""The codecs of a store: integers packed in bits, weights in segments."""
