"""The simulation benches and their runner, installed as ``lrbi.sim``."""
