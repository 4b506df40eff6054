(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 1024) "DATA")
  (func $write (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $say (param $fd i32) (param $len i32) (call $write (local.get $fd) (i32.const 1024) (local.get $len)))
  (func $echo
    (local $n i32)
    (loop $more
      (i32.store (i32.const 0) (i32.const 4096))
      (i32.store (i32.const 4) (i32.const 60000))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (local.set $n (i32.load (i32.const 8)))
      (if (local.get $n) (then
        (call $write (i32.const 1) (i32.const 4096) (local.get $n))
        (br $more)))))
  (func (export "_start") BODY))
