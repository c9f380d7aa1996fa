"""What the tests stand on: a database per test, a clock that moves, the service in process or as a process, a network to cut."""
