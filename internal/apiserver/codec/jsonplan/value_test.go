package jsonplan_test

import (
	"encoding/json"
	"reflect"
	"testing"

	kjson "sigs.k8s.io/json"

	"proa/internal/apiserver/codec/jsonplan"
)

func FuzzValue(f *testing.F) {
	for _, text := range []string{
		`null`, `[]`, `{}`, `{"b":[1,-2.5,1e300,true,null,"<a>&\u2028"],"a":{"":"\u0000\ud800"}}`, `[[{}],[[]]]`,
		`{"apiVersion":"v1","metadata":{"labels":{"a":"b"}},"big":9223372036854775807,"small":1e-9}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return
		}
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := jsonplan.AppendValue(nil, v)
		if err != nil || string(got) != string(want) {
			t.Fatalf("got %s, %v\nwant %s", got, err, want)
		}
	})
}

func TestValuesThatJSONLacksAreTheStandardsMatter(t *testing.T) {
	for _, v := range []any{int64(-3), int(3), map[string]any(nil), []any(nil), map[string]any{"a": []string{"b"}, "c": int64(1)}} {
		want, _ := json.Marshal(v)
		if got, err := jsonplan.AppendValue(nil, v); err != nil || string(got) != string(want) {
			t.Errorf("%v: got %s, %v, want %s", v, got, err, want)
		}
	}
	if _, err := jsonplan.AppendValue(nil, map[string]any{"a": []any{func() {}}}); err == nil {
		t.Error("a function was written")
	}
}

func FuzzDecodeObject(f *testing.F) {
	for _, text := range []string{
		`{}`, ` {"a":[1,-2,{"b":null}],"c":"\u00e9\ud800","d":true} `, `{"a":1,"a":2}`, `{"a":1.5}`, `{"a":[]}`, `{"a":[1,]}`, `[1]`,
		`{"a":9223372036854775808}`, `{"a":-0}`, `{"a":01}`, `{"a":"` + "\xff" + `"}`, `{"a":{}}x`, `{"a" : { "b" :[ ] } }`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := jsonplan.DecodeObject(text)
		if !ok {
			return
		}
		var want map[string]any
		complaints, err := kjson.UnmarshalStrict(text, &want)
		if err != nil || len(complaints) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\ngot  %v\nwant %v, %v, %v", text, got, want, complaints, err)
		}
	})
}

func TestUsualObjectsAreDecodedAtOnce(t *testing.T) {
	for text, covered := range map[string]bool{
		`{"a":[1,-2,{"b":null}],"c":"\u00e9","d":true,"e":[],"f":{}}`: true,
		`{"a":1,"a":2}`: false, `{"a":1.5}`: false, `{"a":1`: false, `{"a":1}}`: false, `null`: false, `[]`: false,
	} {
		if _, ok := jsonplan.DecodeObject([]byte(text)); ok != covered {
			t.Errorf("%s: %v", text, ok)
		}
	}
}
