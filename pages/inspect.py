"""Page inspect."""

from studio import widgets as w

w.page_header("inspect")
w.empty_state("Nothing here yet", "Point an agent at the gateway, or load the demo data.", demo=True)
