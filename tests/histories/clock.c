/* A host's wall clock, preloaded into its programs: the real one plus the milliseconds in the file that HOST_CLOCK names,
 * which may change at any time. Monotonic clocks are left alone, as a step of the clock leaves them. libfaketime 0.9.10
 * cannot do that: Python's time.sleep then fails, or its waits for an event never end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static const volatile int64_t *offset_ms;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("HOST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        offset_ms = shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime)
        real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(clock, now);
    if (!failed && offset_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *offset_ms * 1000000;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

/* A deadline by the host's clock, as one by the kernel's, which waits for it. One by a monotonic clock is no date. */
static const struct timespec *by_the_kernel(const struct timespec *until, struct timespec *shifted) {
    if (!until || !offset_ms || until->tv_sec < 1000000000)
        return until;
    int64_t ns = (int64_t)until->tv_sec * 1000000000 + until->tv_nsec - *offset_ms * 1000000;
    shifted->tv_sec = ns / 1000000000;
    shifted->tv_nsec = ns % 1000000000;
    return shifted;
}

#define REAL(name) ({                                          \
    static __typeof__(&name) real;                             \
    if (!real)                                                 \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
    real;                                                      \
})

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec shifted;
    return REAL(pthread_cond_timedwait)(condition, mutex, by_the_kernel(until, &shifted));
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec shifted;
    return REAL(cnd_timedwait)(condition, mutex, by_the_kernel(until, &shifted));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec shifted;
    return REAL(sem_timedwait)(semaphore, by_the_kernel(until, &shifted));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    struct timespec shifted;
    return REAL(pthread_mutex_timedlock)(mutex, by_the_kernel(until, &shifted));
}
