"""Charts: functions from data to plotly figures or HTML, without Streamlit, in one theme."""
