"""Pages that are generated from the definitions of metrics, alert rules and the dashboard."""
