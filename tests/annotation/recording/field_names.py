"""What fields are called, in programs and in pages."""

from __future__ import annotations

SECRET_NAMES = (
    "Password", "Your passphrase", "passcode", "passwd", "PIN", "PIN code", "card pin:", "newPin", "user_pin", "pin2", "Security code",
    "CVC", "cvv2", "cc-csc", "current-password", "otp", "OTPCode", "otp-1", "one-time code", "one-time-code", "One-time password", "2fa",
    "API key", "apiKey", "access token", "access_token", "clientSecret", "Kennwort", "Passwort", "pwd", "userPwd", "mot de passe",
    "Contraseña", "senha", "Senha:", "Пароль", "Введите пароль", "密码", "密碼", "パスワード", "비밀번호",
)  # fmt: skip
OTHER_NAMES = ("Remarks", "Pinterest", "Opinion", "Spinner", "Secretary", "Passenger", "Passport", "Desenha", "Name", "Laptop", "Post code")
