"""The Streamlit app: entry point, frame, state in the URL, kit, widgets of each page, charts and components."""
