"""Memory of programs: the planner, the storage of values, and plans for a range of sizes. Used by emit and runtime."""
