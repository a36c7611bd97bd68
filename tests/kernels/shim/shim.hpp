// CUDA sources on a host: each thread of a block is a fiber, one system thread runs them all. A fiber has a
// stack from its beginning to its end; lanes that never wait follow each other on one, without a switch.
//
// A warp runs until only a block barrier can free it, its lanes one after the other, each until it waits for
// others. So a barrier that is missing lets the first warp, or lane, read what the last has not written; in
// reverse order, the last what the first has not. Shared memory is filled with a pattern before each block.
//
// Found and reported: lanes and threads that wait for some that do not come, a barrier or a shuffle that
// threads reach at different places, a lane that is not in its own mask, a shuffle from a lane that does not
// take part. A place is an address in the code, told as {+offset}. Not found: races between blocks.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <type_traits>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__ static const
#define __grid_constant__
#define __shared__ static __attribute__((section("shim_shared")))
#define DYNAMIC_SHARED(name) unsigned char* const name = shim::dynamic_shared

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
extern "C" char __start_shim_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char __stop_shim_shared[] __attribute__((weak, visibility("hidden")));

// Written at each switch, so the compiler must not keep them: visible from outside.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
constexpr int warpSize = WARP_SIZE;

namespace shim {

using Mask = std::conditional_t<WARP_SIZE == 64, uint64_t, uint32_t>;
enum class State { ready, collective, barrier, done };
enum class Kind { shuffle, ballot, sync };

struct Stack {
  jmp_buf saved;
  bool started = false;
};

struct Fiber {
  State state;
  bool begun;
  unsigned number;
  unsigned stack;     // from when it has begun
  const void* place;  // where it waits
  Kind kind;
  Mask mask;
  uint64_t value;     // what it gives, then what it gets
  int source;         // lane that it asks
  bool takes;         // whether the answer comes from `source`
};

constexpr unsigned MAX_THREADS = 1024;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK = 512 << 10;
#else
constexpr size_t STACK = 128 << 10;
#endif

Fiber fibers[MAX_THREADS];
Fiber* current;
char* memory;
Stack stacks[MAX_THREADS];
unsigned idle[MAX_THREADS], idle_count;
jmp_buf scheduler;
unsigned char* dynamic_shared;
char message[512];
bool failed, reverse;
void (*body)(void**);
void** arguments;
const void* scheduler_stack;
size_t scheduler_size;

__attribute__((noinline, no_sanitize("address"))) inline void to_scheduler() {
#ifdef __SANITIZE_ADDRESS__
  void* fake;
  __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_size);
#endif
  if (_setjmp(stacks[current->stack].saved) == 0) _longjmp(scheduler, 1);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_size);
#endif
}

template <class... A> void fail(const char* format, A... values) {
  if (!failed) snprintf(message, sizeof message, format, values...);
  failed = true;
}

inline void begin(Fiber& fiber, unsigned stack) {
  fiber.begun = true;
  fiber.stack = stack;
  current = &fiber;
  threadIdx = {fiber.number, 0, 0};
}

// The lane that is next to run, if it has not begun yet.
inline Fiber* next_to_begin(const Fiber& fiber) {
  const unsigned next = reverse ? fiber.number - 1 : fiber.number + 1;
  const bool there = next < blockDim.x && next / WARP_SIZE == fiber.number / WARP_SIZE;
  return there && !fibers[next].begun ? &fibers[next] : nullptr;
}

// One thread after the other has the stack; this never returns.
inline void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  for (;;) {
    body(arguments);
    current->state = State::done;
    if (Fiber* const next = next_to_begin(*current)) {
      begin(*next, current->stack);
      continue;
    }
    idle[idle_count++] = current->stack;
    to_scheduler();
  }
}

__attribute__((no_sanitize("address"))) inline void resume(Fiber& fiber) {
  begin(fiber, fiber.begun ? fiber.stack : idle[--idle_count]);
  Stack& own = stacks[fiber.stack];
  char* stack = memory + STACK * fiber.stack;
#ifdef __SANITIZE_ADDRESS__
  void* fake;
  __sanitizer_start_switch_fiber(&fake, stack, STACK);
#endif
  if (_setjmp(scheduler) == 0) {
    if (own.started) _longjmp(own.saved, 1);
    own.started = true;
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
  }
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// Offset of a place in the library.
inline size_t at(const void* place) { return size_t(static_cast<const char*>(place) - __ehdr_start); }

inline unsigned warp_begin(unsigned thread) { return thread / WARP_SIZE * WARP_SIZE; }

// Let the lanes of a mask go on once all of them are there.
inline void meet(Fiber& last) {
  Fiber* const warp = fibers + warp_begin(last.number);
  const unsigned lanes = blockDim.x - warp_begin(last.number);
  // First those that are next to run, which as a rule are not there yet.
  for (unsigned k = 1; k <= WARP_SIZE; ++k) {
    const unsigned i = (reverse ? last.number - k : last.number + k) % WARP_SIZE;
    if (!(last.mask >> i & 1)) continue;
    if (i >= lanes || warp[i].state == State::done) {
      // A mask that names lanes behind the end of the block, or ones that have returned, never fills.
      fail("thread %u waits at {+%zx} for lane %u, which is not there", last.number, at(last.place), i);
      return;
    }
    if (warp[i].state != State::collective) return;
  }
  uint64_t given[WARP_SIZE] = {};
  Mask ballot = 0;
  for (unsigned i = 0; i < WARP_SIZE; ++i) {
    if (!(last.mask >> i & 1)) continue;
    if (warp[i].mask != last.mask || warp[i].place != last.place) {
      fail("thread %u at {+%zx} meets thread %u, which is at {+%zx} or names other lanes", last.number,
           at(last.place), warp[i].number, at(warp[i].place));
      return;
    }
    given[i] = warp[i].value;
    if (warp[i].value) ballot |= Mask(1) << i;
  }
  for (unsigned i = 0; i < WARP_SIZE; ++i) {
    if (!(last.mask >> i & 1)) continue;
    if (last.kind == Kind::ballot) warp[i].value = ballot;
    if (last.kind == Kind::shuffle && warp[i].takes) {
      if (!(last.mask >> warp[i].source & 1)) {
        fail("thread %u asks at {+%zx} lane %d, which takes no part", warp[i].number, at(last.place),
             warp[i].source);
        return;
      }
      warp[i].value = given[warp[i].source];
    }
    warp[i].state = State::ready;
  }
}

// Not inlined, so that the return address is the place in the kernel.
__attribute__((noinline)) inline uint64_t collective(Kind kind, Mask mask, uint64_t value, int source, bool takes) {
  Fiber& fiber = *current;
  fiber.kind = kind;
  fiber.mask = mask;
  fiber.value = value;
  fiber.source = source;
  fiber.takes = takes;
  fiber.place = __builtin_return_address(0);
  fiber.state = State::collective;
  if (mask >> (fiber.number % WARP_SIZE) & 1) {
    meet(fiber);
  } else {
    fail("thread %u at {+%zx} is not in its own mask", fiber.number, at(fiber.place));
  }
  to_scheduler();
  return fiber.value;
}

__attribute__((noinline)) inline void barrier() {
  current->place = __builtin_return_address(0);
  current->state = State::barrier;
  to_scheduler();
}

inline void run_warp(unsigned begin, unsigned end) {
  for (bool any = true; any && !failed;) {
    any = false;
    for (unsigned k = begin; k < end && !failed; ++k) {
      Fiber& fiber = fibers[reverse ? begin + end - 1 - k : k];
      if (fiber.state != State::ready) continue;
      any = true;
      resume(fiber);
      // Others may have run since on its stack.
      k = reverse ? begin + end - 1 - current->number : current->number;
    }
  }
  for (unsigned k = begin; k < end && !failed; ++k) {
    if (fibers[k].state == State::collective) {
      fail("thread %u waits at {+%zx} for lanes that wait elsewhere or have returned", k, at(fibers[k].place));
    }
  }
}

// All threads of a block must stand at the same barrier, or all have returned.
inline bool release() {
  const Fiber& first = fibers[0];
  for (unsigned k = 0; k < blockDim.x; ++k) {
    const Fiber& fiber = fibers[k];
    const bool waits = fiber.state == State::barrier;
    if (fiber.state == first.state && (!waits || fiber.place == first.place)) continue;
    if (waits && first.state == State::barrier) {
      fail("thread 0 waits at {+%zx}, thread %u at {+%zx}", at(first.place), k, at(fiber.place));
    } else {
      fail("thread %u waits at {+%zx}, thread %u has returned", waits ? k : 0u,
           at((waits ? fiber : first).place), waits ? 0u : k);
    }
    return false;
  }
  if (first.state == State::done) return false;
  for (unsigned k = 0; k < blockDim.x; ++k) fibers[k].state = State::ready;
  return true;
}

__attribute__((no_sanitize("address"))) inline void fill(char* from, const char* to) {
  typedef uint64_t __attribute__((may_alias, aligned(1))) Word;
  for (; from + sizeof(Word) <= to; from += sizeof(Word)) {
    *reinterpret_cast<volatile Word*>(from) = 0xA5A5A5A5A5A5A5A5;
  }
  for (; from < to; ++from) *reinterpret_cast<volatile char*>(from) = char(0xA5);
}

inline void run_block(size_t shared_bytes) {
  fill(__start_shim_shared, __stop_shim_shared);
  memset(dynamic_shared, 0xA5, shared_bytes);
  for (unsigned k = 0; k < blockDim.x; ++k) {
    fibers[k].number = k;
    fibers[k].state = State::ready;
    fibers[k].begun = false;
  }
  const unsigned warps = (blockDim.x + WARP_SIZE - 1) / WARP_SIZE;
  do {
    for (unsigned k = 0; k < warps && !failed; ++k) {
      const unsigned begin = (reverse ? warps - 1 - k : k) * WARP_SIZE;
      run_warp(begin, begin + WARP_SIZE < blockDim.x ? begin + WARP_SIZE : blockDim.x);
    }
  } while (!failed && release());
}

// Grid and block have one dimension. Returns what went wrong, or null.
inline const char* launch(void (*kernel)(void**), unsigned grid, unsigned block, size_t shared_bytes,
                          bool backwards, void** args) {
  if (!memory) {
    void* const room = mmap(nullptr, STACK * MAX_THREADS, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return "no memory for the stacks of the threads";
    memory = static_cast<char*>(room);
  }
  if (grid == 0 || block == 0 || block > MAX_THREADS) return "a launch has 1 to 1024 threads a block, and blocks";
  body = kernel;
  arguments = args;
  reverse = backwards;
  failed = false;
  gridDim.x = grid;
  blockDim.x = block;
  // The last that is added is the first to be taken.
  for (idle_count = 0; idle_count < MAX_THREADS; ++idle_count) idle[idle_count] = MAX_THREADS - 1 - idle_count;
  // Of the very size, so that the address sanitizer sees who writes behind it.
  dynamic_shared = static_cast<unsigned char*>(aligned_alloc(16, shared_bytes ? (shared_bytes + 15) / 16 * 16 : 16));
  for (unsigned k = 0; k < grid && !failed; ++k) {
    blockIdx = {reverse ? grid - 1 - k : k, 0, 0};
    run_block(shared_bytes);
  }
  free(dynamic_shared);
  if (!failed) return nullptr;
  // Fibers in the middle of the failed block are given up, and their stacks begun anew.
  for (Stack& stack : stacks) stack.started = false;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(memory, STACK * MAX_THREADS);
#endif
  return message;
}

// The arguments of a kernel: one letter for its kind (u, i, f; x for a struct), its bytes; pointers begin with
// p, or with c where what they point to is constant.
template <class T> int describe(char* out) {
  if constexpr (std::is_pointer_v<T>) {
    using To = std::remove_pointer_t<T>;
    return describe<std::remove_cv_t<To>>(out + sprintf(out, std::is_const_v<To> ? "c" : "p")) + 1;
  } else {
    const char kind = std::is_floating_point_v<T>  ? 'f'
                      : !std::is_integral_v<T>     ? 'x'
                      : std::is_unsigned_v<T>      ? 'u'
                                                   : 'i';
    return sprintf(out, "%c%zu ", kind, sizeof(T));
  }
}

template <class... A> const char* signature(void (*)(A...)) {
  static char text[16 * (sizeof...(A) + 1)];
  int at = 0;
  ((at += describe<std::remove_cv_t<A>>(text + at)), ...);
  return text;
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<A>*>(args[I])...);
}
template <class... A> void call(void (*kernel)(A...), void** args) {
  call(kernel, args, std::index_sequence_for<A...>());
}

template <class T> uint64_t bits_of(T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T> T from_bits(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline int own_lane() { return int(current->number % WARP_SIZE); }

}  // namespace shim

#include "shim_functions.hpp"
