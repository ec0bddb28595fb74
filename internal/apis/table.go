package apis

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// NameColumn is the first column of every kind, AgeColumn the usual last one of
// the narrow table.
var (
	NameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
	AgeColumn  = Column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
)

// Column always shows; types are string, integer, number, boolean and date.
func Column(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description}
}

// Wide shows with kubectl get -o wide only.
func Wide(name, typ, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: typ, Description: description, Priority: 1}
}

// Age prints how long ago t was, "<unknown>" for no time.
func Age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// AgeOf prints the age of an object.
func AgeOf(obj Object, now time.Time) string { return Age(obj.GetCreationTimestamp(), now) }

// Or returns s, or the alternative where s is empty.
func Or(s, alternative string) string {
	if s == "" {
		return alternative
	}
	return s
}
