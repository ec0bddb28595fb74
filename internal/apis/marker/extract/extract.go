// Package extract reads the markers of API types from their Go source: what may
// be said of a field (+k8s: tags), which gate it waits for (+featureGate) and
// which values a string type has (+enum). It runs when the table is made and
// when a test compares the table with the source, never in the server.
package extract

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ignored are tags for other generators, and those that say nothing of a value.
var ignored = []string{
	"deepcopy-gen", "prerelease-lifecycle-gen", "supportsSubresource", "isSubresource", "conversion-gen", "openapi-gen",
	"validation-gen-nolint", "deprecated", "customValidation", "declarativeValidationNative", "alpha",
}

// Package writes the markers of one package's source files in dir, one line each:
//
//	p <import path>
//	e <string type> <value> ...
//	u <struct type> [discriminator]
//	r <struct type> [+field | -field ...]  that must or need not be there, against its JSON tag
//	t <type> [tag ...]           tabs between tags
//	f <Go field name> [tag ...]  of the type before; @A,B names gates
//
// Types that say nothing are left out.
func Package(out *strings.Builder, dir, importPath string) error {
	files, err := parseDir(dir)
	if err != nil {
		return err
	}
	body := &strings.Builder{}
	values := constants(files)
	for _, f := range files {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.TYPE {
				continue
			}
			for _, spec := range d.Specs {
				writeType(body, f, d, spec.(*ast.TypeSpec), values)
			}
		}
	}
	if body.Len() > 0 {
		fmt.Fprintf(out, "p %s\n%s", importPath, body)
	}
	return nil
}

func parseDir(dir string) ([]*ast.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, e := range entries {
		if !isSource(e) {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func isSource(e fs.DirEntry) bool {
	name := e.Name()
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "generated") && !strings.HasPrefix(name, "zz_")
}

// constant returns the type and the value of a string constant, whose type may also
// be written as a conversion; not ok when the value is not written out.
func constant(typ, v ast.Expr) (name, value string, ok bool) {
	call, converted := v.(*ast.CallExpr)
	if converted && typ == nil && len(call.Args) == 1 {
		typ, v = call.Fun, call.Args[0]
	}
	id, named := typ.(*ast.Ident)
	lit, literal := v.(*ast.BasicLit)
	switch {
	case named && converted && !literal:
		return id.Name, "", false
	case !named || !literal || lit.Kind != token.STRING:
		return "", "", false
	}
	value, err := strconv.Unquote(lit.Value)
	return id.Name, value, err == nil
}

// constants are the string constants of a package by their type.
func constants(files []*ast.File) map[string][]string {
	values := map[string][]string{}
	var computed []string // types some values of which are not written out
	for _, f := range files {
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			for _, spec := range d.Specs {
				s := spec.(*ast.ValueSpec)
				if strings.Contains(text(s.Doc)+text(s.Comment), "+k8s:enumExclude") {
					continue
				}
				for _, v := range s.Values {
					name, value, ok := constant(s.Type, v)
					switch {
					case name != "" && !ok:
						computed = append(computed, name)
					case ok && !slices.Contains(values[name], value):
						values[name] = append(values[name], value)
					}
				}
			}
		}
	}
	for _, name := range computed {
		delete(values, name)
	}
	for _, v := range values {
		slices.Sort(v)
	}
	return values
}

func writeType(out *strings.Builder, f *ast.File, d *ast.GenDecl, spec *ast.TypeSpec, values map[string][]string) {
	doc := d.Doc
	if spec.Doc != nil {
		doc = spec.Doc
	}
	about := before(f, doc) + text(doc)
	isEnum := has(about, "+enum") || has(about, "+k8s:enum")
	if isEnum && len(values[spec.Name.Name]) > 0 {
		fmt.Fprintf(out, "e %s %s\n", spec.Name.Name, strings.Join(values[spec.Name.Name], ","))
	}
	tags := tagsOf(about)
	fields := &strings.Builder{}
	if s, ok := spec.Type.(*ast.StructType); ok {
		if has(about, "+union") {
			out.WriteString(strings.TrimSpace("u "+spec.Name.Name+" "+discriminator(s)) + "\n")
		}
		if fields := presence(s); len(fields) > 0 {
			fmt.Fprintf(out, "r %s %s\n", spec.Name.Name, strings.Join(fields, " "))
		}
		for _, field := range s.Fields.List {
			if marks := tagsOf(text(field.Doc)); len(marks) > 0 {
				fmt.Fprintf(fields, "f %s\t%s\n", fieldName(field), strings.Join(marks, "\t"))
			}
		}
	}
	if fields.Len() > 0 || len(tags) > 0 {
		out.WriteString(strings.TrimSuffix(fmt.Sprintf("t %s\t%s", spec.Name.Name, strings.Join(tags, "\t")), "\t"))
		out.WriteString("\n" + fields.String())
	}
}

// presence lists the fields whose comment says something else than their JSON tag
// about whether they must be there: +field or -field.
func presence(s *ast.StructType) []string {
	var fields []string
	for _, field := range s.Fields.List {
		if field.Tag == nil {
			continue
		}
		optional := strings.Contains(field.Tag.Value, "omitempty") || strings.Contains(field.Tag.Value, "omitzero")
		doc := text(field.Doc)
		switch {
		case optional && has(doc, "+required"):
			fields = append(fields, "+"+fieldName(field))
		case !optional && has(doc, "+optional"):
			fields = append(fields, "-"+fieldName(field))
		}
	}
	return fields
}

// discriminator is the field that says which member of a union is set, if one does.
func discriminator(s *ast.StructType) string {
	for _, field := range s.Fields.List {
		if has(text(field.Doc), "+unionDiscriminator") {
			return fieldName(field)
		}
	}
	return ""
}

// before returns the comment that stands one empty line above doc.
func before(f *ast.File, doc *ast.CommentGroup) string {
	i := slices.Index(f.Comments, doc)
	if doc == nil || i < 1 {
		return ""
	}
	prev := f.Comments[i-1]
	if doc.Pos()-prev.End() > 2 {
		return ""
	}
	return text(prev)
}

func text(g *ast.CommentGroup) string {
	if g == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(strings.TrimSpace(strings.TrimPrefix(c.Text, "//")) + "\n")
	}
	return b.String()
}

func has(doc, line string) bool { return slices.Contains(strings.Split(doc, "\n"), line) }

func fieldName(f *ast.Field) string {
	if len(f.Names) > 0 {
		return f.Names[0].Name
	}
	switch t := f.Type.(type) {
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}

// tagsOf lists the tags of a comment in their order. A tag of the beta stage is
// as good as one without a stage; those of the alpha stage are not enforced and
// left out, as are comments behind a tag. But that a field is immutable ends the
// look at what is in it in the alpha stage, too: then it is "fixed".
func tagsOf(doc string) []string {
	var tags []string
	for _, line := range strings.Split(doc, "\n") {
		if gates, ok := strings.CutPrefix(line, "+featureGate="); ok {
			tags = append(tags, "@"+gates)
			continue
		}
		tag, ok := strings.CutPrefix(line, "+k8s:")
		if !ok {
			continue
		}
		if i := strings.Index(tag, " #"); i >= 0 {
			tag = strings.TrimSpace(tag[:i])
		}
		if staged, rest, ok := strings.Cut(tag, ")=+k8s:"); ok && strings.HasPrefix(staged, "beta(") {
			tag = rest
		} else if ok && strings.HasPrefix(staged, "alpha(") && rest == "immutable" {
			tag = "fixed"
		}
		name := tag[:strings.IndexFunc(tag+" ", func(r rune) bool { return strings.ContainsRune("=(: ", r) })]
		if slices.Contains(ignored, name) {
			continue
		}
		tags = append(tags, strings.ReplaceAll(strings.ReplaceAll(tag, "+k8s:", ""), `"`, ""))
	}
	return tags
}
