;; Made from text_stats.c by build.sh; change that file, not this one.
(module
  (type (;0;) (func (param i32 i32 i32 i32) (result i32)))
  (type (;1;) (func (param i32)))
  (type (;2;) (func))
  (type (;3;) (func (param i32 i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func (;0;) (type 0)))
  (import "wasi_snapshot_preview1" "fd_write" (func (;1;) (type 0)))
  (import "wasi_snapshot_preview1" "proc_exit" (func (;2;) (type 1)))
  (func (;3;) (type 2)
    (local i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 0
    global.set 0
    local.get 0
    i32.const 0
    i32.store offset=12
    i32.const 0
    local.set 1
    block  ;; label = @1
      block  ;; label = @2
        loop  ;; label = @3
          local.get 0
          i32.const 4194304
          local.get 1
          local.tee 2
          i32.sub
          i32.store offset=4
          local.get 0
          local.get 2
          i32.const 1184
          i32.add
          i32.store
          i32.const 0
          local.get 0
          i32.const 1
          local.get 0
          i32.const 12
          i32.add
          call 0
          br_if 1 (;@2;)
          local.get 0
          i32.load offset=12
          local.tee 3
          local.get 2
          i32.add
          local.set 1
          block  ;; label = @4
            local.get 3
            i32.eqz
            br_if 0 (;@4;)
            local.get 1
            i32.const 4194304
            i32.lt_u
            br_if 1 (;@3;)
          end
        end
        local.get 3
        local.get 2
        i32.add
        local.set 3
        i32.const 0
        local.set 2
        loop  ;; label = @3
          block  ;; label = @4
            local.get 3
            local.get 2
            i32.ne
            br_if 0 (;@4;)
            local.get 1
            local.set 2
            br 3 (;@1;)
          end
          local.get 2
          i32.const 1184
          i32.add
          i32.load8_u
          i32.const 58
          i32.eq
          br_if 2 (;@1;)
          local.get 2
          i32.const 1
          i32.add
          local.set 2
          br 0 (;@3;)
        end
      end
      i32.const 1158
      i32.const 22
      call 4
      unreachable
    end
    local.get 2
    local.get 1
    local.get 2
    local.get 1
    i32.gt_u
    select
    local.set 4
    block  ;; label = @1
      block  ;; label = @2
        loop  ;; label = @3
          local.get 4
          local.get 2
          i32.eq
          br_if 1 (;@2;)
          local.get 2
          i32.const 1184
          i32.add
          local.set 3
          local.get 2
          i32.const 1
          i32.add
          local.tee 5
          local.set 2
          local.get 3
          i32.load8_u
          i32.const 34
          i32.ne
          br_if 0 (;@3;)
        end
        i32.const 0
        local.set 6
        i32.const 0
        local.set 7
        i32.const 0
        local.set 8
        i32.const 0
        local.set 9
        i32.const 0
        local.set 2
        i32.const 0
        local.set 10
        block  ;; label = @3
          block  ;; label = @4
            loop  ;; label = @5
              local.get 2
              local.set 4
              local.get 5
              local.get 1
              i32.ge_u
              br_if 1 (;@4;)
              local.get 5
              i32.const 1184
              i32.add
              i32.load8_u
              local.tee 3
              i32.const 34
              i32.eq
              br_if 2 (;@3;)
              block  ;; label = @6
                block  ;; label = @7
                  block  ;; label = @8
                    block  ;; label = @9
                      block  ;; label = @10
                        block  ;; label = @11
                          local.get 3
                          i32.const 92
                          i32.ne
                          br_if 0 (;@11;)
                          local.get 5
                          i32.const 2
                          i32.add
                          local.set 11
                          i32.const 1
                          local.set 3
                          i32.const 0
                          local.set 2
                          i32.const 0
                          local.set 12
                          block  ;; label = @12
                            block  ;; label = @13
                              local.get 5
                              i32.const 1185
                              i32.add
                              i32.load8_u
                              i32.const -110
                              i32.add
                              br_table 4 (;@9;) 1 (;@12;) 1 (;@12;) 1 (;@12;) 3 (;@10;) 1 (;@12;) 3 (;@10;) 0 (;@13;) 1 (;@12;)
                            end
                            local.get 5
                            i32.const 6
                            i32.add
                            local.tee 13
                            local.get 1
                            i32.gt_u
                            br_if 0 (;@12;)
                            local.get 5
                            i32.const 1186
                            i32.add
                            local.set 12
                            i32.const 0
                            local.set 2
                            i32.const 0
                            local.set 3
                            loop  ;; label = @13
                              local.get 2
                              i32.const 4
                              i32.eq
                              br_if 5 (;@8;)
                              local.get 12
                              local.get 2
                              i32.add
                              i32.load8_u
                              local.tee 5
                              i32.const -48
                              i32.add
                              local.get 5
                              i32.const 32
                              i32.or
                              i32.const -87
                              i32.add
                              local.get 5
                              i32.const 58
                              i32.lt_u
                              select
                              local.get 3
                              i32.const 4
                              i32.shl
                              i32.add
                              local.set 3
                              local.get 2
                              i32.const 1
                              i32.add
                              local.set 2
                              br 0 (;@13;)
                            end
                          end
                          i32.const 1
                          local.set 10
                          local.get 6
                          i32.const 1
                          i32.add
                          local.set 6
                          local.get 11
                          local.set 5
                          br 5 (;@6;)
                        end
                        local.get 4
                        local.set 2
                        local.get 5
                        i32.const 1
                        i32.add
                        local.tee 5
                        local.set 13
                        local.get 3
                        i32.const 192
                        i32.and
                        i32.const 128
                        i32.eq
                        br_if 5 (;@5;)
                        br 3 (;@7;)
                      end
                      i32.const 0
                      local.set 3
                      i32.const 1
                      local.set 12
                    end
                    local.get 3
                    local.get 8
                    i32.add
                    local.set 8
                    local.get 6
                    i32.const 1
                    i32.add
                    local.set 6
                    local.get 11
                    local.set 5
                    local.get 12
                    local.set 10
                    br 3 (;@5;)
                  end
                  local.get 13
                  local.set 5
                  local.get 4
                  local.set 2
                  local.get 3
                  i32.const -1024
                  i32.and
                  i32.const 56320
                  i32.eq
                  br_if 2 (;@5;)
                end
                local.get 3
                i32.const 10
                i32.ne
                local.set 10
                local.get 6
                i32.const 1
                i32.add
                local.set 6
                local.get 8
                local.get 3
                i32.const 10
                i32.eq
                i32.add
                local.set 8
                block  ;; label = @7
                  local.get 3
                  i32.const -9
                  i32.add
                  local.tee 3
                  i32.const 23
                  i32.le_u
                  br_if 0 (;@7;)
                  local.get 13
                  local.set 5
                  br 1 (;@6;)
                end
                local.get 13
                local.set 5
                i32.const 0
                local.set 2
                i32.const 1
                local.get 3
                i32.shl
                i32.const 8388627
                i32.and
                br_if 1 (;@5;)
              end
              local.get 4
              i32.const 1
              i32.add
              local.tee 2
              local.get 9
              local.get 2
              local.get 9
              i32.gt_u
              select
              local.set 9
              local.get 7
              local.get 4
              i32.eqz
              i32.add
              local.set 7
              br 0 (;@5;)
            end
          end
          i32.const 1101
          i32.const 31
          call 4
          unreachable
        end
        i32.const 1024
        call 5
        local.get 6
        call 6
        i32.const 1049
        call 5
        local.get 7
        call 6
        i32.const 1039
        call 5
        local.get 10
        local.get 8
        i32.add
        call 6
        i32.const 1059
        call 5
        local.get 9
        call 6
        i32.const 1075
        call 5
        local.get 0
        i32.const 4195488
        i32.store
        local.get 0
        i32.const 0
        i32.load offset=4195616
        i32.store offset=4
        i32.const 1
        local.get 0
        i32.const 1
        local.get 0
        i32.const 12
        i32.add
        call 1
        br_if 1 (;@1;)
        local.get 0
        i32.const 16
        i32.add
        global.set 0
        return
      end
      i32.const 1078
      i32.const 22
      call 4
      unreachable
    end
    i32.const 1133
    i32.const 24
    call 4
    unreachable)
  (func (;4;) (type 3) (param i32 i32)
    (local i32)
    global.get 0
    i32.const 16
    i32.sub
    local.tee 2
    global.set 0
    local.get 2
    local.get 1
    i32.store offset=12
    local.get 2
    local.get 0
    i32.store offset=8
    i32.const 2
    local.get 2
    i32.const 8
    i32.add
    i32.const 1
    local.get 2
    i32.const 4
    i32.add
    call 1
    drop
    i32.const 1
    call 2
    unreachable)
  (func (;5;) (type 1) (param i32)
    (local i32 i32)
    i32.const 0
    i32.load offset=4195616
    local.set 1
    block  ;; label = @1
      loop  ;; label = @2
        local.get 0
        i32.load8_u
        local.tee 2
        i32.eqz
        br_if 1 (;@1;)
        local.get 1
        i32.const 4195488
        i32.add
        local.get 2
        i32.store8
        i32.const 0
        local.get 1
        i32.const 1
        i32.add
        local.tee 1
        i32.store offset=4195616
        local.get 0
        i32.const 1
        i32.add
        local.set 0
        br 0 (;@2;)
      end
    end)
  (func (;6;) (type 1) (param i32)
    (local i32 i32 i32 i32)
    global.get 0
    i32.const 16
    i32.sub
    local.set 1
    i32.const 0
    local.set 2
    loop  ;; label = @1
      local.get 1
      i32.const 6
      i32.add
      local.get 2
      i32.add
      local.get 0
      local.get 0
      i32.const 10
      i32.div_u
      local.tee 3
      i32.const 10
      i32.mul
      i32.sub
      i32.const 48
      i32.or
      i32.store8
      local.get 2
      i32.const 1
      i32.add
      local.set 2
      local.get 0
      i32.const 9
      i32.gt_u
      local.set 4
      local.get 3
      local.set 0
      local.get 4
      br_if 0 (;@1;)
    end
    local.get 1
    i32.const 6
    i32.add
    i32.const -1
    i32.add
    local.set 3
    i32.const 0
    i32.load offset=4195616
    local.set 0
    block  ;; label = @1
      loop  ;; label = @2
        local.get 2
        i32.eqz
        br_if 1 (;@1;)
        local.get 0
        i32.const 4195488
        i32.add
        local.get 3
        local.get 2
        i32.add
        i32.load8_u
        i32.store8
        local.get 0
        i32.const 1
        i32.add
        local.set 0
        local.get 2
        i32.const -1
        i32.add
        local.set 2
        br 0 (;@2;)
      end
    end
    i32.const 0
    local.get 0
    i32.store offset=4195616)
  (table (;0;) 1 1 funcref)
  (memory (;0;) 65)
  (global (;0;) (mut i32) (i32.const 4212016))
  (export "memory" (memory 0))
  (export "_start" (func 3))
  (data (;0;) (i32.const 1024) "{\22characters\22:\00,\22lines\22:\00,\22words\22:\00,\22longestWord\22:\00}\0a\00the input has no text\0a\00the input ends within the text\0a\00cannot write the output\0a\00cannot read the input\0a\00"))
