;; Makes 1,000 folders where it may write none, each of another name.
(module
  (import "wasi_snapshot_preview1" "path_create_directory" (func $make (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00\01\00\00\001")
  (data (i32.const 16) "1")
  (func $digit (param $n i32) (result i32) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
  (func (export "_start") (local $n i32)
    (loop $more
      (i32.store8 (i32.const 100) (call $digit (i32.div_u (local.get $n) (i32.const 100))))
      (i32.store8 (i32.const 101) (call $digit (i32.div_u (local.get $n) (i32.const 10))))
      (i32.store8 (i32.const 102) (call $digit (local.get $n)))
      (drop (call $make (i32.const 3) (i32.const 100) (i32.const 3)))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $more (i32.lt_u (local.get $n) (i32.const 1000))))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 32)))))
