package connect

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decodeQuery fills a pointer to an options struct from query parameters of its
// fields' JSON names. The error is a 400 Status.
func decodeQuery(values url.Values, into any) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		list, ok := values[name]
		if name == "" || !ok || len(list) == 0 {
			continue
		}
		if err := setField(v.Field(i), list); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	return nil
}

func setField(f reflect.Value, list []string) error {
	switch p := f.Addr().Interface().(type) {
	case *string:
		*p = list[0]
	case **string:
		*p = &list[0]
	case *[]string:
		*p = list
	case *bool:
		*p = isTrue(list[0])
	case **int64:
		n, err := strconv.ParseInt(list[0], 10, 64)
		if err != nil {
			return err
		}
		*p = &n
	case *[]int32:
		return setPorts(p, list)
	case **metav1.Time:
		t, err := time.Parse(time.RFC3339, list[0])
		if err != nil {
			return err
		}
		*p = &metav1.Time{Time: t}
	}
	return nil
}

// isTrue holds for anything but "false" and "0", so that a bare ?stdin counts.
func isTrue(s string) bool {
	s = strings.ToLower(s)
	return s != "false" && s != "0"
}

func setPorts(ports *[]int32, list []string) error {
	for _, value := range list {
		for part := range strings.SplitSeq(value, ",") {
			n, err := strconv.ParseUint(part, 10, 16)
			if err != nil {
				return fmt.Errorf("cannot convert to []int32: %w", err)
			}
			*ports = append(*ports, int32(n))
		}
	}
	return nil
}
