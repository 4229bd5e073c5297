"""The exit codes of the `dlcb` command, which scripts may rely on."""

DONE = 0  # also: served, asked to stop, and answered everything that was accepted
FAILED = 1  # a model did not compile or load, or an entry of the cache is damaged
BAD_CONFIG = 2  # the configuration file or the command line is wrong; click uses it as well
NO_COMPILER = 3
BAD_CACHE = 4  # the cache folder, or the bundle, cannot be used
