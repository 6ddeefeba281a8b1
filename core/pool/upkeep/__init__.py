"""What is deleted and put back, the opinions log, recovery and checks."""
