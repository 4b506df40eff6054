;; Asks for two million elements of a table, and says whether it got them.
(component
  (core module $m
    (memory (export "memory") 1) (table $t 1 funcref)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
    (func (export "run") (param i32 i32) (result i32)
      (i32.store8 (i32.const 100)
        (select (i32.const 48) (i32.const 49) (i32.eq (i32.const -1) (table.grow $t (ref.null func) (i32.const 2000000)))))
      (i32.store8 (i32.const 0) (i32.const 0)) (i32.store (i32.const 4) (i32.const 100))
      (i32.store (i32.const 8) (i32.const 1)) (i32.const 0)))
  (core instance $i (instantiate $m))
  (func (export "run") (param "input" string) (result (result string (error string)))
    (canon lift (core func $i "run") (memory (core memory $i "memory")) (realloc (core func $i "realloc")))))
