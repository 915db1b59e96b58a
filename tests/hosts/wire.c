/* Hosts of a network on one machine, and the switch between them, in one process.
 *
 *     wire SUBNET NAME[=MTU]...
 *
 * The first name is the machine itself: it gets an interface in the present network namespace. Each
 * further name gets a namespace of its own with one interface. Addresses count up from SUBNET + 1.
 * The other end of every interface (TAP) is here. Frames leave a host after its rate and delay, and
 * arrive after the other's; some are lost. TCP's segments come as one frame where none is to be
 * lost, as with the offloads of a network card. Namespaces and interfaces are gone when the process
 * ends, which it does at the end of its input.
 *
 * Prints NAME ADDRESS NAMESPACE for each host and then `ready`; a namespace is the number of an open
 * file of this process. Each line read is a command, answered by `ok CARRIED LOST STOPPED`, the
 * frames so far. A and B may be * for all hosts:
 *
 *     delay A MS | loss A SHARE | rate A MBIT    of either direction of a host's wire; 0 for none
 *     cut A B                                    frames from A to B vanish
 *     refuse A B                                 those of TCP are answered by a reset
 *     mend A B                                   frames from A arrive at B
 *     count                                      nothing */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <math.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 13, FRAME = 1 << 17, ETHERNET = 14, BATCH = 64, BETWEEN_FRAMES = 24, MTU = 1500 };
enum way { MENDED, CUT, REFUSED };
static const int64_t QUEUE_NS = 100 * 1000 * 1000;
static const double QUEUE_BYTES = 1 << 20;
static const int HEAD = sizeof(struct virtio_net_hdr);

struct port {
    const char *name;
    int fd, mtu;
    int64_t delay_ns, out_free, in_free;
    double loss, ns_per_byte;
};

struct event {
    int64_t at;
    uint64_t number;
    int to, size, bytes_on_wire, has_arrived;
    uint8_t *frame;
};

static struct port ports[MOST];
static int num_ports;
static enum way ways[MOST][MOST];
static struct event *heap;
static size_t num_events, room;
static uint64_t num_pushed, carried, lost, stopped, state = 88172645463325252ull;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static double draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) * 0x1p-53;
}

static int before(const struct event *a, const struct event *b) {
    return a->at != b->at ? a->at < b->at : a->number < b->number;
}

static void push(struct event event) {
    if (num_events == room) {
        room = room ? 2 * room : 1024;
        if ((heap = realloc(heap, room * sizeof *heap)) == NULL) fail("memory");
    }
    event.number = num_pushed++;
    size_t n = num_events++;
    for (; n && before(&event, &heap[(n - 1) / 2]); n = (n - 1) / 2) heap[n] = heap[(n - 1) / 2];
    heap[n] = event;
}

static struct event pop(void) {
    struct event first = heap[0], last = heap[--num_events];
    size_t n = 0;
    for (size_t child; (child = 2 * n + 1) < num_events; n = child) {
        if (child + 1 < num_events && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[n] = heap[child];
    }
    heap[n] = last;
    return first;
}

/* Send a frame through the queue of one direction of a wire; the time when its last byte has left,
 * or -1 where the queue is full. */
static int64_t queued(const struct port *port, int64_t *free_at, int64_t at, int bytes) {
    if (port->ns_per_byte == 0) return at;
    int64_t waiting = *free_at - at;
    if (waiting > QUEUE_NS || waiting > QUEUE_BYTES * port->ns_per_byte) return -1;
    *free_at = (waiting > 0 ? *free_at : at) + (int64_t)(bytes * port->ns_per_byte);
    return *free_at;
}

static void deliver(int to, const uint8_t *frame, int size) {
    if (write(ports[to].fd, frame, size) == size) carried++;
}

/* Carry out an event; whether its frame goes on, and stays in memory. */
static int happen(struct event event) {
    struct port *port = &ports[event.to];
    if (!event.has_arrived) {
        int64_t left = queued(port, &port->in_free, event.at, event.bytes_on_wire);
        if (left < 0) {
            lost++;
            return 0;
        }
        if (left + port->delay_ns > event.at) {
            event.at = left + port->delay_ns, event.has_arrived = 1;
            push(event);
            return 1;
        }
    }
    deliver(event.to, event.frame, event.size);
    return 0;
}

static uint16_t checksum(const void *data, int size, uint32_t sum) {
    const uint8_t *bytes = data;
    for (int n = 0; n < size; n += 2) sum += bytes[n] << 8 | (n + 1 < size ? bytes[n + 1] : 0);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

/* Answer a TCP frame by a reset (RFC 9293, 3.5.2), as a firewall that refuses does. */
static void reset(int from, const uint8_t *frame) {
    struct iphdr ip;
    struct tcphdr tcp, answer = {0};
    uint8_t reply[HEAD + ETHERNET + sizeof ip + sizeof tcp];
    const uint8_t *packet = frame + HEAD + ETHERNET;
    memcpy(&ip, packet, sizeof ip);
    memcpy(&tcp, packet + 4 * ip.ihl, sizeof tcp);
    if (tcp.rst) return;
    int size = ntohs(ip.tot_len) - 4 * ip.ihl - 4 * tcp.doff + tcp.syn + tcp.fin;
    answer.source = tcp.dest, answer.dest = tcp.source, answer.doff = 5, answer.rst = 1;
    answer.seq = tcp.ack ? tcp.ack_seq : 0, answer.ack = !tcp.ack;
    answer.ack_seq = tcp.ack ? 0 : htonl(ntohl(tcp.seq) + size);
    struct iphdr back = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP};
    back.tot_len = htons(sizeof back + sizeof answer);
    back.saddr = ip.daddr, back.daddr = ip.saddr;
    back.check = checksum(&back, sizeof back, 0);
    uint32_t sum = IPPROTO_TCP + sizeof answer;
    for (int n = 0; n < 32; n += 16)
        sum += (ntohl(ip.saddr) >> n & 0xffff) + (ntohl(ip.daddr) >> n & 0xffff);
    answer.check = checksum(&answer, sizeof answer, sum);
    memset(reply, 0, HEAD);
    memcpy(reply + HEAD, frame + HEAD + 6, 6);
    memcpy(reply + HEAD + 6, frame + HEAD, 6);
    memcpy(reply + HEAD + 12, frame + HEAD + 12, 2);
    memcpy(reply + HEAD + ETHERNET, &back, sizeof back);
    memcpy(reply + HEAD + ETHERNET + sizeof back, &answer, sizeof answer);
    deliver(from, reply, sizeof reply);
}

/* Send a frame on its way from one host to another. */
static void enter(int from, int to, const uint8_t *frame, int size) {
    struct virtio_net_hdr head;
    memcpy(&head, frame, sizeof head);
    struct port *near = &ports[from], *far = &ports[to];
    const uint8_t *packet = frame + HEAD + ETHERNET;
    int is_tcp = frame[HEAD + 12] == 8 && frame[HEAD + 13] == 0 && packet[9] == IPPROTO_TCP;
    int length = size - HEAD - ETHERNET, headers = 4 * (packet[0] & 15), segments = 1;
    if (ways[from][to] == CUT || (ways[from][to] == REFUSED && is_tcp)) {
        if (ways[from][to] == REFUSED) reset(from, frame);
        stopped++;
        return;
    }
    if (head.gso_type != VIRTIO_NET_HDR_GSO_NONE && is_tcp) {
        headers += packet[headers + 12] / 16 * 4;
        segments = (length - headers + head.gso_size - 1) / head.gso_size;
        length = headers + head.gso_size;
    }
    if (length > near->mtu || length > far->mtu) {
        stopped++;
        return;
    }
    if (draw() >= (1 - near->loss) * (1 - far->loss)) {
        lost++;
        return;
    }
    int extra = BETWEEN_FRAMES * segments + (segments - 1) * (ETHERNET + headers);
    struct event event = {.to = to, .size = size, .bytes_on_wire = size - HEAD + extra};
    int64_t now = now_ns(), left = queued(near, &near->out_free, now, event.bytes_on_wire);
    if (left < 0) {
        lost++;
        return;
    }
    event.at = left + near->delay_ns;
    if (far->ns_per_byte == 0) event.at += far->delay_ns, event.has_arrived = 1; /* one wait */
    if ((event.frame = malloc(size)) == NULL) fail("memory");
    memcpy(event.frame, frame, size);
    if (event.at > now)
        push(event);
    else if (!happen(event))
        free(event.frame);
}

/* Take the frames that a host has sent, but those of IPv6; a host's number is the last byte of its
 * hardware address. */
static void take(int from) {
    static uint8_t frame[FRAME];
    for (int n = 0; n < BATCH; n++) {
        int size = read(ports[from].fd, frame, sizeof frame);
        if (size < HEAD + ETHERNET) return;
        if (frame[HEAD + 12] != 8) continue; /* neither IPv4 nor ARP */
        int to = frame[HEAD + 5], is_for_all = frame[HEAD] & 1;
        for (int each = 0; each < num_ports; each++)
            if (each != from && (is_for_all || each == to)) enter(from, each, frame, size);
    }
}

static void offload(void) {
    int has_loss = 0;
    for (int n = 0; n < num_ports; n++) has_loss |= ports[n].loss > 0;
    for (int n = 0; n < num_ports; n++)
        ioctl(ports[n].fd, TUNSETOFFLOAD, has_loss ? TUN_F_CSUM : TUN_F_CSUM | TUN_F_TSO4);
}

static int is_named(int port, const char *name) {
    return !strcmp(name, "*") || !strcmp(name, ports[port].name);
}

static void command(char *line) {
    char what[16] = "", a[64] = "", b[64] = "";
    int found = 0;
    sscanf(line, "%15s %63s %63s", what, a, b);
    for (int n = 0; n < num_ports; n++) {
        if (!is_named(n, a)) continue;
        double value = atof(b);
        int is_way = !strcmp(what, "cut") || !strcmp(what, "refuse") || !strcmp(what, "mend");
        found = is_way;
        if (!strcmp(what, "delay")) found = 1, ports[n].delay_ns = value * 1e6;
        if (!strcmp(what, "loss")) found = 1, ports[n].loss = value;
        if (!strcmp(what, "rate")) found = 1, ports[n].ns_per_byte = value > 0 ? 8000 / value : 0;
        for (int to = 0; is_way && to < num_ports; to++)
            if (is_named(to, b))
                ways[n][to] = what[0] == 'c' ? CUT : what[0] == 'r' ? REFUSED : MENDED;
    }
    if (!found && strcmp(what, "count")) {
        printf("unknown: %s\n", line);
        return;
    }
    if (!strcmp(what, "loss")) offload();
    printf("ok %lu %lu %lu\n", carried, lost, stopped);
}

/* Obey the lines that have come. */
static void obey(void) {
    static char text[4096];
    static size_t length;
    ssize_t size = read(0, text + length, sizeof text - 1 - length);
    if (size <= 0) exit(0);
    text[length += size] = 0;
    char *line = text;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = 0;
        command(line);
    }
    length -= line - text;
    memmove(text, line, length + 1);
    fflush(stdout);
}

static void set(int file, unsigned long what, struct ifreq *request, const char *name) {
    if (ioctl(file, what, request) < 0) fail(name);
}

/* Make an interface in the present namespace; the other end is the port. */
static void plug(int number, const char *interface, struct in_addr address) {
    struct port *port = &ports[number];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = address};
    if ((port->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0) fail("/dev/net/tun");
    snprintf(request.ifr_name, IFNAMSIZ, "%s", interface);
    set(port->fd, TUNSETIFF, &request, "TUNSETIFF");
    int file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint8_t hardware[6] = {2, 0x53, getpid() >> 16, getpid() >> 8, getpid(), number};
    memcpy(request.ifr_hwaddr.sa_data, hardware, sizeof hardware);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    set(file, SIOCSIFHWADDR, &request, "SIOCSIFHWADDR");
    memcpy(&request.ifr_addr, &at, sizeof at);
    set(file, SIOCSIFADDR, &request, "SIOCSIFADDR");
    at.sin_addr.s_addr = htonl(0xfffffff0);
    memcpy(&request.ifr_addr, &at, sizeof at);
    set(file, SIOCSIFNETMASK, &request, "SIOCSIFNETMASK");
    request.ifr_mtu = port->mtu;
    set(file, SIOCSIFMTU, &request, "SIOCSIFMTU");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    set(file, SIOCSIFFLAGS, &request, "SIOCSIFFLAGS");
    strcpy(request.ifr_name, "lo");
    set(file, SIOCSIFFLAGS, &request, "lo");
    close(file);
    int namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    printf("%s %s %d\n", port->name, inet_ntoa(address), namespace);
}

static void build(int argc, char **argv) {
    char interface[IFNAMSIZ];
    uint32_t subnet = ntohl(inet_addr(argv[1]));
    snprintf(interface, sizeof interface, "slip%d", getpid());
    for (int n = 0; n < argc - 2; n++) {
        char *mtu = strchr(argv[n + 2], '=');
        if (mtu != NULL) *mtu = 0;
        ports[n].name = argv[n + 2], ports[n].mtu = mtu == NULL ? MTU : atoi(mtu + 1);
        if (n > 0 && unshare(CLONE_NEWNET) < 0) fail("unshare");
        plug(n, n ? "eth0" : interface, (struct in_addr){htonl(subnet + 1 + n)});
        num_ports++;
    }
    offload();
    puts("ready");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > MOST + 2) {
        fprintf(stderr, "usage: wire SUBNET NAME[=MTU]..., with at most %d names\n", MOST);
        return 2;
    }
    build(argc, argv);
    /* A frame that is due must not wait for what the hosts compute. */
    prctl(PR_SET_TIMERSLACK, 1);
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    int poll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int files[MOST + 2] = {0, timer};
    for (int n = 0; n < num_ports; n++) files[n + 2] = ports[n].fd;
    for (int n = 0; n < num_ports + 2; n++)
        epoll_ctl(poll, EPOLL_CTL_ADD, files[n],
                  &(struct epoll_event){.events = EPOLLIN, .data.u32 = n});
    for (;;) {
        struct epoll_event ready[MOST + 2];
        int count = epoll_wait(poll, ready, MOST + 2, -1);
        for (int n = 0; n < count; n++) {
            if (ready[n].data.u32 == 0) obey();
            if (ready[n].data.u32 > 1) take(ready[n].data.u32 - 2);
        }
        int64_t now = now_ns();
        while (num_events && heap[0].at <= now) {
            struct event event = pop();
            if (!happen(event)) free(event.frame);
        }
        int64_t at = num_events ? heap[0].at : 0;
        struct itimerspec due = {.it_value = {at / 1000000000, at % 1000000000}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &due, NULL);
    }
}
