/* A time of day that tests set while a process runs, as if somebody set the machine's clock.
 *
 * Preloaded. The seconds to add are in the file that CHAOS_CLOCK names, mapped, as an int64.
 * Monotonic clocks stay as they are. A wait until an absolute time of day, which gRPC makes by
 * futex, is carried out in the machine's own time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t zero;
static const volatile int64_t *ahead = &zero;

/* Follow another file; called after a fork. */
void follow_clock(const char *path) {
    int file = open(path, O_RDONLY);
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) ahead = map;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHAOS_CLOCK");
    if (path != NULL) follow_clock(path);
}

static int real_time(clockid_t id, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "clock_gettime");
    return next(id, now);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = real_time(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NULL) *result = now.tv_sec;
    return now.tv_sec;
}

long syscall(long number, ...) {
    static long (*next)(long, ...);
    if (next == NULL) next = dlsym(RTLD_NEXT, "syscall");
    __builtin_va_list list;
    long a[6];
    __builtin_va_start(list, number);
    for (int n = 0; n < 6; n++) a[n] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    struct timespec until;
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3] != 0) {
        until = *(const struct timespec *)a[3];
        until.tv_sec -= *ahead;
        a[3] = (long)&until;
    }
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
