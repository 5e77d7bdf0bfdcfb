"""The demo's steps, a module each with its STEP; `demo.show` has the list and its order."""
