"""What importers of tasks and of demonstrations share: a record's fields (fields), JSON and YAML by strangers (reading), and PyAutoGUI's
calls and code as actions (pyautogui_calls, pyautogui_code).
"""
