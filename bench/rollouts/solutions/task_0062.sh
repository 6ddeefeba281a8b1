mkdir -p out
python3 app/setlist_server.py --config config/settings.json > out/failed_startup.txt 2>&1
echo '{"host": "127.0.0.1", "port": 8081, "auto_restart": true, "max_restarts": 2}' > config/settings.json
python3 app/setlist_server.py --config config/settings.json > out/server_startup.txt 2>&1
{
  echo "root_cause: $(grep 'Address already in use' logs/previous_run.log | head -1)"
  echo "command_output: $(grep 'Address already in use' out/failed_startup.txt)"
  echo 'fix: the port is another one: {"host": "127.0.0.1", "port": 8081}'
  echo "verification: $(grep 'Serving setlist viewer on' out/server_startup.txt)"
} > out/incident_report.md
