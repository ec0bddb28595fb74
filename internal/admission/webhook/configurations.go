package webhook

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"proa/internal/admission/manifest"
	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
)

func mutatingHooks(obj apis.Object) []*hook {
	config := obj.(*admissionregistrationv1.MutatingWebhookConfiguration)
	return hooksOf(config.Name, config.Webhooks, "admit")
}

func validatingHooks(obj apis.Object) []*hook {
	config := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration)
	return hooksOf(config.Name, admissionregistration.CommonForm(config.Webhooks), "validating")
}

func readMutating(dir string) ([][]*hook, string, error) {
	return fromFiles(dir, manifest.ReadMutatingWebhooks, mutatingHooks)
}

func readValidating(dir string) ([][]*hook, string, error) {
	return fromFiles(dir, manifest.ReadValidatingWebhooks, validatingHooks)
}

// fromFiles makes webhooks out of a directory, in the order of their configurations' names.
func fromFiles[T apis.Object](dir string, read func(string) ([]T, string, error), hooks func(apis.Object) []*hook) ([][]*hook, string, error) {
	configurations, hash, err := read(dir)
	if err != nil {
		return nil, "", err
	}
	made := make([][]*hook, len(configurations))
	for i, config := range configurations {
		made[i] = hooks(config)
		for _, h := range made[i] {
			h.uid = "manifest/" + h.uid // an object may have the name, from when it was not reserved
		}
	}
	return made, hash, nil
}
