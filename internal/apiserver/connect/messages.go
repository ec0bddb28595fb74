package connect

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Subprotocols of a WebSocket that carries one stream to the client. A client that
// names none gets binary messages, too.
const (
	binaryMessages = "binary.k8s.io"
	base64Messages = "base64.binary.k8s.io"
)

// sendMessages copies a stream into the messages of a WebSocket, after an empty
// one, until either side ends. What the client sends is ignored.
func sendMessages(w http.ResponseWriter, r *http.Request, from io.ReadCloser) {
	upgrader := websocket.Upgrader{WriteBufferPool: &sync.Pool{}, CheckOrigin: func(*http.Request) bool { return true }}
	if asked := websocket.Subprotocols(r); len(asked) > 0 {
		i := slices.IndexFunc(asked, func(p string) bool { return p == binaryMessages || p == base64Messages })
		if i < 0 {
			http.Error(w, fmt.Sprintf("requested protocol(s) are not supported: %s", strings.Join(asked, ", ")), http.StatusForbidden)
			return
		}
		upgrader.Subprotocols = asked[i : i+1]
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer from.Close() // ends the copy
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer conn.Close()
	kind, encode := websocket.BinaryMessage, func(b []byte) []byte { return b }
	if conn.Subprotocol() == base64Messages {
		kind, encode = websocket.TextMessage, func(b []byte) []byte { return base64.StdEncoding.AppendEncode(nil, b) }
	}
	if conn.WriteMessage(kind, nil) != nil {
		return
	}
	buffer := make([]byte, 2048)
	for {
		n, err := from.Read(buffer)
		if n > 0 && conn.WriteMessage(kind, encode(buffer[:n])) != nil {
			return
		}
		if err != nil {
			conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
			return
		}
	}
}
