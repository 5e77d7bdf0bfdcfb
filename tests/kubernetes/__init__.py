"""The manifests of docs/kubernetes: their own rules, and the schemas of the API."""
