"""How a process that could work on a run hears of it. Hints only: correctness never depends on one."""
