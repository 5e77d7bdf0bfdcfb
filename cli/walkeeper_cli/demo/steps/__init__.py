"""The demo's steps: each is a module with a STEP. `demo.show` has the list and its order."""
