"""Data to plotly figures. No Streamlit in here; one template (``theme``) follows light and dark."""
