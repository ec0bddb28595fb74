package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// What little of protobuf the generator reads: messages are fields, and of those
// only the ones with bytes in them matter here.

var errProtobuf = errors.New("protobuf is malformed")

// bytesField returns the first field of a number in a message.
func bytesField(message []byte, number uint64) ([]byte, error) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return nil, errProtobuf
		}
		value, m := binary.Uvarint(message[n:])
		if m <= 0 {
			return nil, errProtobuf
		}
		message = message[n+m:]
		switch tag & 7 {
		case 0:
			continue
		case 2:
		default:
			return nil, errProtobuf
		}
		if value > uint64(len(message)) {
			return nil, errProtobuf
		}
		if tag>>3 == number {
			return message[:value], nil
		}
		message = message[value:]
	}
	return nil, nil
}

// protobufContinue is the continue token of a list: the third field of its
// metadata, in the list, in the second field of the envelope.
func protobufContinue(page []byte) (string, error) {
	list, ok := bytes.CutPrefix(page, []byte("k8s\x00"))
	if !ok {
		return "", errProtobuf
	}
	for _, number := range []uint64{2, 1, 3} {
		var err error
		if list, err = bytesField(list, number); err != nil {
			return "", err
		}
	}
	return string(list), nil
}
