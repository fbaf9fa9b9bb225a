// Goes into testing.go of Go's own: says how tests end, in lines that only who has the key can write.
package testing

import (
	watchsha256 "crypto/sha256"
	watchhex "encoding/hex"
	watchreflect "reflect"
	watchruntime "runtime"
	watchstrconv "strconv"
	watchsync "sync"
	watchsyscall "syscall"
)

var watch = struct {
	watchsync.Mutex
	file    int
	known   map[string]uintptr // what the program was built with
	tests   uintptr
	running map[*common]bool
}{running: map[*common]bool{}}

func init() {
	watch.file, _ = watchsyscall.Dup(1)
	watchsyscall.CloseOnExec(watch.file)
}

// Whether this is the program's own start; code under test could call for others.
func watchStart(tests []InternalTest) bool {
	var callers [1]uintptr
	watchruntime.Callers(3, callers[:])
	frame, _ := watchruntime.CallersFrames(callers[:]).Next()
	if watch.known != nil || frame.Function != "main.main" {
		return false
	}
	watch.known = map[string]uintptr{}
	watch.tests = watchreflect.ValueOf(tests).Pointer()
	for _, test := range tests {
		watchKnown(test.Name, test.F)
	}
	return true
}

func watchKnown(name string, function interface{}) {
	watch.known[name] = watchreflect.ValueOf(function).Pointer()
}

func watchBegin(c *common, function interface{}) {
	watch.Lock()
	defer watch.Unlock()
	pointer, known := watch.known[c.name]
	if watch.running[c.parent] || known && pointer == watchreflect.ValueOf(function).Pointer() {
		watch.running[c] = true
	}
}

func watchEnd(c *common) {
	watch.Lock()
	running := watch.running[c]
	watch.Unlock()
	word := "PASS"
	if c.Failed() {
		word = "FAIL"
	} else if c.Skipped() {
		word = "SKIP"
	}
	if running {
		watchSay(word, c.level, c.name)
	}
}

func watchExample(name string, function func(), passed bool) {
	word := "FAIL"
	if passed {
		word = "PASS"
	}
	if pointer, known := watch.known[name]; known && pointer == watchreflect.ValueOf(function).Pointer() {
		watchSay(word, 1, name)
	}
}

func watchRun(tests []InternalTest, code int) {
	if watch.tests == watchreflect.ValueOf(tests).Pointer() {
		watchSay("END", 0, watchstrconv.Itoa(code))
	}
}

func watchSay(word string, level int, name string) {
	key, _ := watchhex.DecodeString("$key")
	run, _ := watchsyscall.Getenv("$variable")
	line := run + " " + word + " " + watchstrconv.Itoa(level) + " " + watchhex.EncodeToString([]byte(name))
	sum := watchsha256.Sum256([]byte(string(key) + line + string(key)))
	watchsyscall.Write(watch.file, []byte("\n$mark "+watchhex.EncodeToString(sum[:])+" "+line+"\n"))
}
