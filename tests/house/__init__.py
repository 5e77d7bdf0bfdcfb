"""The project's own order: style, language, documents, rules and their references."""
