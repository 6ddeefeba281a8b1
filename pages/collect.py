"""Page collect."""

from studio import widgets as w

w.page_header("collect")
w.empty_state("Nothing here yet", "Point an agent at the gateway, or load the demo data.", demo=True)
