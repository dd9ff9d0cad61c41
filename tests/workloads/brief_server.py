"""A stand-in server that starts in milliseconds, to be restarted often: one answer, no model.

`python -S tests/workloads/brief_server.py PORT` serves until it is killed.
"""

import socket
import sys

BODY = b'{"model":"brief","choices":[{"message":{"content":" word"}}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


def main() -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[1])))
    listener.listen()
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(65536):
                connection.sendall(ANSWER % (len(BODY), BODY))


if __name__ == "__main__":
    main()
