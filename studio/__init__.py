"""The Streamlit app: entry point, frame, shared state, widgets, charts and components."""
