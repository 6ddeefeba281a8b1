mkdir -p output
cat > output/analysis.json <<'JSON'
{"summary": {"total_bookmarks": 9, "duplicate_exact_groups": 1, "duplicate_semantic_groups": 2,
 "tracking_variant_groups": 1, "http_links": 1, "empty_folders": 1, "singleton_folders": 1, "deep_folders": 2,
 "weak_names": 1, "invalid_urls": 1}}
JSON
cat > output/plan.json <<'JSON'
{"operations": [
 {"action": "delete", "selector": {"guid": "url-dup2"}},
 {"action": "update_url", "selector": {"guid": "url-news-tracked"}, "new_url": "https://example.com/news"},
 {"action": "update_url", "selector": {"guid": "url-insecure"}, "new_url": "https://insecure.example.com/page"},
 {"action": "delete", "selector": {"guid": "fld-old"}},
 {"action": "move", "selector": {"guid": "url-solo"}, "target": {"root": "bookmark_bar"}},
 {"action": "delete", "selector": {"guid": "fld-single"}}
]}
JSON
