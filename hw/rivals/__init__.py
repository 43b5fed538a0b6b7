"""Decoders of other index formats, as good as we could make them, to be compared with ours."""
