// ThreadSanitizer sees the memory that libzmq's threads share, but not how the uninstrumented library (and libsodium,
// which decrypts into that memory) orders its accesses.
// Link this into test programs that use control.
#if defined(__SANITIZE_THREAD__)
#define PIPESHARD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PIPESHARD_THREAD_SANITIZER 1
#endif
#endif

#ifdef PIPESHARD_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions() { return "race:libzmq.so\nrace:libsodium.so\ncalled_from_lib:libzmq.so\n"; }
#endif
