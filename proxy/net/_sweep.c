/* One round of the poller in few system-call loops: which sockets are ready, the first bytes of each, what is to be
 * written. It knows descriptors, events and bytes. swept_poller.py describes it and is its only user, on the event
 * loop's thread; poller.py does the same without it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define MOST_EVENTS 256
#define MOST_IN_BATCH 64
#define MOST_AHEAD 4096
#define MOST_PIECES 256

typedef struct {
    PyObject *on_ready; /* NULL: the descriptor is not watched */
    PyObject *on_bytes; /* NULL: its bytes are not read ahead */
    int ahead;          /* how many bytes may be read ahead now */
} Slot;

typedef struct {
    PyObject *ticket; /* borrowed of the list */
    int fd;
    int first, end; /* its pieces */
    Py_ssize_t bytes;
    Py_ssize_t sent; /* or -errno */
} Write;

typedef struct {
    PyObject_HEAD
    int epoll;
    Slot *slots; /* by descriptor */
    int slot_count;
    struct epoll_event events[MOST_EVENTS];
    int at, end; /* the events that have not been handled */
    bool serving;
    char bytes[MOST_IN_BATCH][MOST_AHEAD];
    Write writes[MOST_PIECES];
    struct iovec pieces[MOST_PIECES];
    Py_buffer held[MOST_PIECES];
} Sweep;

typedef struct {
    PyObject *call; /* owned */
    int fd;
    int events;
    int ahead; /* how many bytes to read; 0: on_ready is called */
    int error;
    Py_ssize_t count;
} Turn;

/* A whole number from `least` to `most`; -1 with an exception if it is none. */
static int whole(PyObject *number, const char *name, int least, int most)
{
    int overflow;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    if (PyErr_Occurred())
        return -1;
    if (overflow || value < least || value > most) {
        PyErr_Format(PyExc_ValueError, "%s: expected %d to %d, got %R", name, least, most, number);
        return -1;
    }
    return (int)value;
}

static PyObject *sweep_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int epoll;
    if (!PyArg_ParseTuple(args, "i", &epoll))
        return NULL;
    Sweep *self = (Sweep *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->epoll = epoll;
    return (PyObject *)self;
}

static int sweep_traverse(Sweep *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int fd = 0; fd < self->slot_count; fd++) {
        Py_VISIT(self->slots[fd].on_ready);
        Py_VISIT(self->slots[fd].on_bytes);
    }
    return 0;
}

static int sweep_clear(Sweep *self)
{
    for (int fd = 0; fd < self->slot_count; fd++) { /* what is released here may call add or discard */
        Py_CLEAR(self->slots[fd].on_ready);
        Py_CLEAR(self->slots[fd].on_bytes);
    }
    return 0;
}

static void sweep_dealloc(Sweep *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    sweep_clear(self);
    PyMem_Free(self->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static Slot *slot_of(Sweep *self, int fd)
{
    return fd < self->slot_count && self->slots[fd].on_ready != NULL ? &self->slots[fd] : NULL;
}

/* The slot of a descriptor that is watched; NULL with KeyError if it is not. */
static Slot *watched(Sweep *self, PyObject *number)
{
    int fd = whole(number, "fd", 0, INT_MAX);
    Slot *slot = fd < 0 ? NULL : slot_of(self, fd);
    if (fd >= 0 && slot == NULL)
        PyErr_SetObject(PyExc_KeyError, number);
    return slot;
}

static bool make_room(Sweep *self, int fd)
{
    if (fd < self->slot_count)
        return true;
    size_t wanted = (size_t)fd + 64 + (size_t)fd / 2;
    Slot *slots = wanted > INT_MAX ? NULL : PyMem_Realloc(self->slots, wanted * sizeof(Slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memset(slots + self->slot_count, 0, (wanted - self->slot_count) * sizeof(Slot));
    self->slots = slots;
    self->slot_count = (int)wanted;
    return true;
}

static PyObject *sweep_add(Sweep *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "expected add(fd, on_ready, on_bytes)");
        return NULL;
    }
    int fd = whole(args[0], "fd", 0, INT_MAX);
    if (fd < 0 || !make_room(self, fd))
        return NULL;
    Slot former = self->slots[fd];
    self->slots[fd] = (Slot){Py_NewRef(args[1]), args[2] == Py_None ? NULL : Py_NewRef(args[2]), 0};
    Py_XDECREF(former.on_ready);
    Py_XDECREF(former.on_bytes);
    Py_RETURN_NONE;
}

static PyObject *sweep_discard(Sweep *self, PyObject *number)
{
    Slot *slot = watched(self, number);
    if (slot == NULL)
        return NULL;
    Slot former = *slot;
    *slot = (Slot){NULL, NULL, 0};
    Py_DECREF(former.on_ready);
    Py_XDECREF(former.on_bytes);
    Py_RETURN_NONE;
}

static PyObject *sweep_set_ahead(Sweep *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "expected set_ahead(fd, most_bytes)");
        return NULL;
    }
    int ahead = whole(args[1], "most_bytes", 0, MOST_AHEAD);
    Slot *slot = ahead < 0 ? NULL : watched(self, args[0]);
    if (slot == NULL)
        return NULL;
    slot->ahead = ahead;
    Py_RETURN_NONE;
}

static PyObject *sweep_begin(Sweep *self, PyObject *number)
{
    int most = whole(number, "most", 1, MOST_EVENTS), count;
    if (most < 0)
        return NULL;
    if (self->serving) {
        PyErr_SetString(PyExc_RuntimeError, "a batch is under way");
        return NULL;
    }
    self->at = self->end = 0;
    Py_BEGIN_ALLOW_THREADS
    count = epoll_wait(self->epoll, self->events, most, 0);
    Py_END_ALLOW_THREADS
    if (count < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    self->end = count < 0 ? 0 : count;
    return PyBool_FromLong(self->end);
}

/* Choose the next descriptors, and read ahead from those that allow it; returns how many were chosen. */
static int choose(Sweep *self, Turn *turns, int most)
{
    int count = 0;
    bool reads = false;
    for (; self->at < self->end && count < most; self->at++) {
        struct epoll_event *event = &self->events[self->at];
        Slot *slot = slot_of(self, event->data.fd);
        if (slot == NULL)
            continue;
        bool ahead = slot->ahead && slot->on_bytes != NULL && event->events == EPOLLIN;
        PyObject *call = ahead ? slot->on_bytes : slot->on_ready;
        turns[count++] = (Turn){Py_NewRef(call), event->data.fd, event->events, ahead ? slot->ahead : 0, 0, 0};
        reads |= ahead;
    }
    if (reads) {
        Py_BEGIN_ALLOW_THREADS
        for (int i = 0; i < count; i++) {
            if (turns[i].ahead) {
                turns[i].count = recv(turns[i].fd, self->bytes[i], turns[i].ahead, MSG_DONTWAIT);
                turns[i].error = turns[i].count < 0 ? errno : 0;
            }
        }
        Py_END_ALLOW_THREADS
    }
    return count;
}

/* Make the call of one descriptor; false if it raised. Bytes that were read go to whom they were read for, watched or
 * not by now. */
static bool take(Sweep *self, Turn *turn, const char *bytes)
{
    PyObject *argument;
    Slot *slot = slot_of(self, turn->fd);
    if (!turn->ahead) {
        if (slot == NULL || slot->on_ready != turn->call)
            return true;
        argument = PyLong_FromLong(turn->events);
    } else if (turn->error == EAGAIN || turn->error == EINTR) {
        return true;
    } else if (turn->error) {
        argument = PyLong_FromLong(turn->error);
    } else {
        if (turn->count == turn->ahead && slot != NULL && slot->on_bytes == turn->call)
            slot->ahead = 0; /* there is more, which is read in larger pieces */
        argument = PyBytes_FromStringAndSize(bytes, turn->count);
        if (argument == NULL)
            shutdown(turn->fd, SHUT_RDWR); /* no memory: bytes are lost, so nothing may follow them */
    }
    if (argument == NULL)
        return false;
    PyObject *result = PyObject_CallOneArg(turn->call, argument);
    Py_DECREF(argument);
    Py_XDECREF(result);
    return result != NULL;
}

/* All are handled though one call raises; the first exception is raised at the end. */
static PyObject *sweep_serve(Sweep *self, PyObject *number)
{
    int most = whole(number, "most", 1, MOST_IN_BATCH);
    if (most < 0)
        return NULL;
    if (self->serving) {
        PyErr_SetString(PyExc_RuntimeError, "a batch is under way");
        return NULL;
    }
    Turn turns[MOST_IN_BATCH];
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    self->serving = true;
    int count = choose(self, turns, most);
    for (int i = 0; i < count; i++) {
        if (!take(self, &turns[i], self->bytes[i])) {
            if (type == NULL)
                PyErr_Fetch(&type, &value, &traceback);
            else
                PyErr_WriteUnraisable(turns[i].call);
        }
        Py_DECREF(turns[i].call);
    }
    self->serving = false;
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    return PyBool_FromLong(self->at < self->end);
}

/* Hold the first pieces of a ticket (fd, list of pieces, writer) behind `used` others; returns how many are held then,
 * or -1 with an exception. */
static int hold(Sweep *self, PyObject *ticket, Write *write, int used)
{
    PyObject *list = PyTuple_GET_ITEM(ticket, 1);
    *write = (Write){ticket, whole(PyTuple_GET_ITEM(ticket, 0), "fd", 0, INT_MAX), used, used, 0, 0};
    bool failed = write->fd < 0;
    while (!failed && used < MOST_PIECES && used - write->first < PyList_GET_SIZE(list)) {
        Py_buffer *piece = &self->held[used];
        failed = PyObject_GetBuffer(PyList_GET_ITEM(list, used - write->first), piece, PyBUF_SIMPLE) < 0;
        if (!failed) {
            self->pieces[used++] = (struct iovec){piece->buf, piece->len};
            write->bytes += piece->len;
        }
    }
    write->end = used;
    while (failed && used > write->first)
        PyBuffer_Release(&self->held[--used]);
    return failed ? -1 : used;
}

static void send_all(Sweep *self, int count)
{
    for (Write *write = self->writes; write < self->writes + count; write++) {
        struct msghdr message = {.msg_iov = self->pieces + write->first, .msg_iovlen = write->end - write->first};
        if (message.msg_iovlen == 1)
            write->sent = send(write->fd, message.msg_iov->iov_base, message.msg_iov->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
        else
            write->sent = sendmsg(write->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (write->sent < 0)
            write->sent = -errno;
    }
}

/* Empty the list of what was sent whole; note in `rest` what was not. */
static bool note(Write *write, PyObject *rest)
{
    PyObject *list = PyTuple_GET_ITEM(write->ticket, 1);
    if (write->sent == write->bytes && write->end - write->first == PyList_GET_SIZE(list))
        return PyList_SetSlice(list, 0, PY_SSIZE_T_MAX, NULL) == 0;
    PyObject *entry = Py_BuildValue("(On)", PyTuple_GET_ITEM(write->ticket, 2), write->sent);
    bool noted = entry != NULL && PyList_Append(rest, entry) == 0;
    Py_XDECREF(entry);
    if (!noted)
        shutdown(write->fd, SHUT_RDWR); /* no memory: what was sent would be sent again, so nothing may follow it */
    return noted;
}

static bool is_ticket(PyObject *ticket)
{
    return PyTuple_Check(ticket) && PyTuple_GET_SIZE(ticket) == 3 && PyList_Check(PyTuple_GET_ITEM(ticket, 1));
}

/* Send as many tickets from `next` on as there is room for, and note the rest; returns the next one, or -1 with an
 * exception. */
static Py_ssize_t write_some(Sweep *self, PyObject *tickets, Py_ssize_t next, PyObject *rest)
{
    int count = 0, used = 0;
    bool failed = false;
    for (; next < PyList_GET_SIZE(tickets) && !failed; next++) {
        PyObject *ticket = PyList_GET_ITEM(tickets, next);
        failed = !is_ticket(ticket);
        if (failed) {
            PyErr_SetString(PyExc_TypeError, "expected tickets (fd, pieces, writer)");
            break;
        }
        Py_ssize_t wanted = PyList_GET_SIZE(PyTuple_GET_ITEM(ticket, 1));
        if (used && used + wanted > MOST_PIECES)
            break;
        if (wanted == 0)
            continue; /* nothing waits any more */
        int held = hold(self, ticket, &self->writes[count], used);
        failed = held < 0;
        if (!failed) {
            used = held;
            count++;
        }
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_BEGIN_ALLOW_THREADS
    send_all(self, count);
    Py_END_ALLOW_THREADS
    while (used)
        PyBuffer_Release(&self->held[--used]);
    for (Write *write = self->writes; write < self->writes + count; write++) {
        if (note(write, rest))
            continue;
        if (failed)
            PyErr_Clear();
        else
            PyErr_Fetch(&type, &value, &traceback);
        failed = true;
    }
    if (failed)
        PyErr_Restore(type, value, traceback);
    return failed ? -1 : next;
}

static PyObject *sweep_write(Sweep *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected write(tickets, rest), two lists");
        return NULL;
    }
    Py_ssize_t next = 0;
    while (next >= 0 && next < PyList_GET_SIZE(args[0]))
        next = write_some(self, args[0], next, args[1]);
    if (next < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef sweep_methods[] = {
    {"add", (PyCFunction)(void (*)(void))sweep_add, METH_FASTCALL, NULL},
    {"discard", (PyCFunction)sweep_discard, METH_O, NULL},
    {"set_ahead", (PyCFunction)(void (*)(void))sweep_set_ahead, METH_FASTCALL, NULL},
    {"begin", (PyCFunction)sweep_begin, METH_O, NULL},
    {"serve", (PyCFunction)sweep_serve, METH_O, NULL},
    {"write", (PyCFunction)(void (*)(void))sweep_write, METH_FASTCALL, NULL},
    {NULL},
};

static PyType_Slot sweep_slots[] = {
    {Py_tp_new, sweep_new},
    {Py_tp_dealloc, sweep_dealloc},
    {Py_tp_traverse, sweep_traverse},
    {Py_tp_clear, sweep_clear},
    {Py_tp_methods, sweep_methods},
    {0, NULL},
};

static PyType_Spec sweep_spec = {
    "kafka_throttle.proxy.net._sweep.Sweep", sizeof(Sweep), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, sweep_slots,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kafka_throttle.proxy.net._sweep", NULL, -1, NULL};

PyMODINIT_FUNC PyInit__sweep(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&sweep_spec);
    if (type == NULL || PyModule_AddObject(module, "Sweep", type) < 0) {
        Py_XDECREF(type);
        Py_CLEAR(module);
    }
    return module;
}
