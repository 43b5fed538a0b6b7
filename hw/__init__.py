"""The RTL generator, installed as ``lrbi.hw``."""
