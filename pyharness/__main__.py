from pyharness.cli import main

main()
