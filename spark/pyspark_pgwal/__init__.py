"""The Spark data source `pgwal`."""
