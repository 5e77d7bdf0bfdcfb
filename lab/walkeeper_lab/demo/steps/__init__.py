"""The demo's steps: each is a module with a STEP. `demo.demo_run` has the list and its order."""
